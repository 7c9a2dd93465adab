import math


class CosineDecay:
    """Half a cosine from one to zero over ``total`` steps; zero afterwards.

    A class, since a lambda could not be sent to another process.
    """

    def __init__(self, total: int):
        self.total = max(1, total)

    def __call__(self, step: int) -> float:
        return (1 + math.cos(math.pi * min(1.0, step / self.total))) / 2
