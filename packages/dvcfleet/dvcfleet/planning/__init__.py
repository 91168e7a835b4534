"""Planning: the stage graph, each stage's state with its reasons, and the resources that stages request."""
