"""Formats on the wire and in stores, as ``docs/spec`` states them.  No torch.

==============  ===============================================================
``segment``     seal and parse segments; what most callers need of the next four
``ranges``      one layer's bytes: verify, view
``header``      what a segment says about itself
``layout``      the cache layout in it
``structure``   ranges, tensors and pads against each other
``manifest``    a baton's payload; wrap and unwrap
``envelope``    DSSE
``transcript``  token ids, text, messages
``prefix``      which segment ends a prefix
``binding``     segments and transcripts against manifest and tokens
``digests``     keyed addresses, token digests, prefix keys; ids
``canonical``   JSON with one spelling
``fields``      typed readers with a path
``limits``      every size that bytes from elsewhere are held to
==============  ===============================================================
"""
