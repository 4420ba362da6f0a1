"""The audit: tests with an attacker whether ``mechanism.release`` keeps the claim of its plan.

``neighbours`` builds two neighbouring runs, with and without one worst-case client (the canary).
``coupled`` measures the noise of a few rounds and compares releases under the same noise (level 0:
almost exact; it finds dependence on data). ``distinguish`` runs the whole mechanism thousands of
times and counts how often an attacker recognises the canary (level 1: statistical, with 99 %
confidence). ``cases`` lists the distinct releases of all methods and gives the verdicts. report/
makes the table and the figure. The audit calls the release, the sampler and the generators that
training calls. A mechanism that passes is not proved private: the proofs are in docs/privacy.md.

``pflpipe.audit(release, claim)`` attacks anyone's release of arrays in the same way (``arrays``,
``claim``, ``audit``).
"""
