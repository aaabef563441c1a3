"""Run speculative-decoding correctness suites against fixtures, and report what happened.

Two suites share one report: ``exact`` (:mod:`.cases`, :mod:`.scenarios`, :mod:`.worker`,
:mod:`.judge`) compares every token and every counter of a real vLLM with what is known in advance;
``vllm`` (:mod:`.upstream`) runs vLLM's own tests, unmodified, with fixtures in place of the hub
models they name.
"""
