"""Mechanisms by their names in a study; ``base`` says what one is. They count and draw with NumPy,
SciPy and dp_accounting, never with torch."""

from pflpipe.privacy.mechanisms.base import Mechanism
from pflpipe.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from pflpipe.privacy.mechanisms.gaussian import Gaussian
from pflpipe.privacy.mechanisms.laplace import Laplace
from pflpipe.privacy.mechanisms.nothing import Nothing
from pflpipe.privacy.mechanisms.skellam import Skellam

_ALL = (Nothing(), Gaussian(), Laplace(), DiscreteGaussian(), Skellam())
_BY_NAME = {one.name: one for one in _ALL}


def of(name: str) -> Mechanism:
    """Return the mechanism of this name, which is one of ``cells.MECHANISMS`` or none."""
    return _BY_NAME[name]
