"""Runners: threads and processes on this machine, Ray and Dask clusters."""
