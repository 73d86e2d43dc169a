"""PyTorch: a user's model file, one step on one minibatch at a time."""
