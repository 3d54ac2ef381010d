"""Formats on the wire and in stores, as ``docs/spec`` states them.  No torch.

``canonical``  JSON with one spelling        ``digests``     keyed addresses, prefix keys, ids
``fields``     typed readers with a path     ``limits``      every size that is ever trusted
``segment``    seal and parse segments       ``layout``      the cache layout inside a header
``structure``  header against its tensors    ``manifest``    the baton's payload, wrap and unwrap
``envelope``   DSSE                          ``transcript``  ids, text, messages
``prefix``     prefix records                ``binding``     segments and transcripts to tokens
"""
