"""Tests of the figures with controls; a package, so that a file of the same name may be in another folder."""
