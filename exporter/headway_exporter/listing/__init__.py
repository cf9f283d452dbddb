"""`headway incidents`: lists and searches the incidents of many runs.

    folder (reads lines) -> briefs (what filters need of a record) -> groups (one incident, however many pods saw it)
    query (filters), words (full text) -> the groups asked for -> table, or the records themselves

Tens of thousands of records are read each time, so a line is parsed only as far as the question needs, and whole only when it is shown.
Nothing is written: the state folder may be mounted read-only, and an index kept elsewhere would have to be trusted and cleaned up.
"""
