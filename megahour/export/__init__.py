"""Datasets in other projects' formats, made from episodes of the lake."""
