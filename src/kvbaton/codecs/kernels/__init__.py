"""Compiled twins of the quantizing chains, for tensors on the host.

What they compute, bit for bit, is what the readable codecs compute; a property test holds them
to it.  Where a kernel meets anything odd (numbers that are not finite, parameters out of range) it
gives up, and the readable codec decides and says what is wrong.
"""
