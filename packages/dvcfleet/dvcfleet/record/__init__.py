"""The record of runs: the ledger of their stages, their DVC experiments."""
