"""What batons cost in quality: codecs, slices, shift, repair and hops, against text.

:mod:`.whole` has whole contexts through codecs, :mod:`.slices` slices behind another beginning,
:mod:`.private` questions about private facts, :mod:`.hops` lossy batons that are handed on, and
:mod:`.costs` what it all takes.
"""
