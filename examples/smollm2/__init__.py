"""The suite `smollm2`: SmolLM2-135M-Instruct with LoRA adapters on four tasks of prompts."""
