"""`headway doctor`: looks at a set-up and says what to do.

Facts are gathered in child processes with a deadline (`gather`, `probes_*`), for a file system or a driver that hangs must not hang the
doctor; `checks_*` are pure and turn facts into findings. Only the standard library is needed: it runs in the trainer's container as well.
"""
