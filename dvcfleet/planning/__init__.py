"""Planning: the stage graph, each stage's state and why, what each stage asks for."""
