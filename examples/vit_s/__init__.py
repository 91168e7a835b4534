"""The suite `vit-s`: a pretrained vision transformer, fine-tuned on six tasks of pictures."""
