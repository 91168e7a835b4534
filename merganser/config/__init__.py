"""params.yaml: read, and checked against the methods and the models' headers."""
