"""Tests of certificates need the extra for proofs."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("weft.extras.proof") else ["test_decoder_proofs.py", "test_recalled.py"]
