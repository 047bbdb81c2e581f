"""The program in the box. It runs commands and moves files for the host, over its own stdin and stdout.

It is alone there: the standard library of Python 3.7 or later, and /proc. One thread, so that it can fork. Where it
can, it is the first process of its namespace, which nobody inside can kill; and it can't be traced, so nobody inside
can speak for it.

A message is a header (request number, length of the JSON, length of the bytes), a JSON object, and bytes. The host
asks; each request gets one reply, in any order.
"""
