"""The pipeline's stages: one module each, files in, files out."""
