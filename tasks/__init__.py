"""The stages of the pipeline: each module with a `main` is one stage of dvc.yaml, files in, files out.

The other modules here are what stages share. A *task* is a fine-tuned model and its data, never a stage.
"""
