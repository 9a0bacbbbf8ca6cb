"""Inputs of jobs: files, messages and streams of files."""
