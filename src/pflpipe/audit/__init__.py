"""The audit: does a release keep what its plan claims? An attacker with every advantage is let
loose on ``mechanism.release``.

``neighbours`` builds two neighbouring runs, with and without one worst-case client (the canary);
``coupled`` measures the noise of a few rounds and compares releases under the same noise (level 0:
all but exact, finds what depends on data); ``distinguish`` plays the whole run thousands of times
and counts how often an attacker tells the worlds apart (level 1: statistical, certain at 99 %);
``cases`` lists the distinct releases of all methods and gives the verdicts; ``report`` makes the
table and the figure. All of them call the very release, the very sampler and the very generators
that training calls. A mechanism that passes is not proved private: the proofs are in
docs/privacy.md.
"""
