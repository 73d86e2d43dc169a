"""Optimizers of one's own in Keras: a rule that Keras does not have, and a change of Adam."""

import keras
from keras import ops


class Yogi(keras.optimizers.Optimizer):
    """Yogi, of "Adaptive Methods for Nonconvex Optimization" (Zaheer et al., NeurIPS 2018)."""

    def __init__(self, learning_rate=0.01, beta_1=0.9, beta_2=0.999, epsilon=1e-3, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.m = [self.add_variable_from_reference(v, "m") for v in variables]
        self.v = [
            self.add_variable_from_reference(v, "v", initializer=keras.initializers.Constant(1e-6))
            for v in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        place = self._get_variable_index(variable)
        m, v = self.m[place], self.v[place]
        t = ops.cast(self.iterations + 1, variable.dtype)
        square = ops.square(gradient)
        self.assign_add(m, (gradient - m) * (1 - self.beta_1))
        self.assign_sub(v, (1 - self.beta_2) * ops.sign(v - square) * square)
        rate = learning_rate * ops.sqrt(1 - ops.power(self.beta_2, t))
        rate = rate / (1 - ops.power(self.beta_1, t))
        self.assign_sub(variable, rate * m / (ops.sqrt(v) + self.epsilon))


class CautiousAdam(keras.optimizers.Adam):
    """Adam on gradients between -1 and 1, which leaves small weights alone."""

    def update_step(self, gradient, variable, learning_rate):
        gradient = ops.where(ops.abs(variable) < 0.01, 0.0 * gradient, ops.clip(gradient, -1, 1))
        super().update_step(gradient, variable, learning_rate)
