"""The command line: a thin shell, one file per command.

========================  ===========================================================
``main``                  the app; errors become exit codes
``output``                tables and progress for people, one JSON object for programs
``options``               options that several commands share
``inputs``                files and standard input, as text or chat messages
``places``                the store and the trust domain that a command works on
``engines``               loading a model, with progress
``*_command``             ``register(app)`` adds one command or one group of commands
``verification``          every byte of a baton against its digests
``comparison``            where two batons differ
``holdings``              what a store holds
``reference``             makes ``docs/guides/cli.md``
========================  ===========================================================

Nothing here imports torch before a command needs a model.
"""
