"""A user's Keras model on JAX: what `keras.model` has for TensorFlow. `feed` stays TensorFlow's."""
