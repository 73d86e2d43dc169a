"""A process that computes as a worker of `join_model.py` does, and joins nobody.

python benchmarks/join_neighbour.py NUM_NUMBERS
"""

import sys

import numpy as np


def main() -> None:
    """Make gradients and updates like those of Adam, one after the other, on one core."""
    num_numbers = int(sys.argv[1])
    weights, first, second = (np.zeros(num_numbers, np.float32) for _ in range(3))
    print("computes", flush=True)
    while True:
        gradient = np.full(num_numbers, 1e-3, np.float32)
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient * gradient - second)
        weights -= 0.001 * first / (np.sqrt(second) + 1e-7)


if __name__ == "__main__":
    main()
