"""The library behind the Post-Training Labs.

Nothing is imported here: `labs_lib.runtime.start` has to set the processor pins before torch is loaded.
"""
