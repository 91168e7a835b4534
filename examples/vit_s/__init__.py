"""The suite `vit-s`: a pretrained vision transformer, fine-tuned on eight tasks of pictures."""
