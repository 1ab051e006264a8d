"""Random numbers with an address: a seed and a name. Who draws before or beside changes none."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def random_of(seed: int, name: str) -> np.random.Philox:
    """The numbers of one name (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
    2011).
    """
    key = blake2b(f"{seed} {name}".encode(), digest_size=16).digest()
    return np.random.Philox(key=np.frombuffer(key, "<u8"))
