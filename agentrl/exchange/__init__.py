"""Stored trajectories ↔ files that others read.

    store ─select─▶ Sample ─examples─▶ one JSON object each ─files─▶ .jsonl, .parquet or a `datasets` folder
    store ◀─ Trajectory, sampler import ◀─read─ one JSON object each ◀─files─

An export is written beside its target and renamed when it is whole; an import is one new run, or nothing.
"""
