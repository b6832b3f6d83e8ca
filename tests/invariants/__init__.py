"""Tests of the labs; a package, so that a file of the same name may be in another folder."""
