"""Frameworks behind one seam: a minibatch in, gradients out."""
