"""Writes tests/data/digits.npz from scikit-learn's digits: `python tools/make_digits.py OUT.npz`.

1,797 handwritten digits of 8 x 8 pixels, 0 .. 16 there, 0 .. 255 here (E. Alpaydin and C. Kaynak,
"Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, CC BY 4.0). Needs
scikit-learn; nothing else here does.
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_digits


def main(target: str) -> None:
    """Writes the arrays that `rebar train-images --data` takes."""
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    names = np.array([str(name) for name in digits.target_names])
    labels = digits.target.astype(np.uint8)
    np.savez_compressed(target, images=images, labels=labels, names=names)


if __name__ == "__main__":
    main(sys.argv[1])
