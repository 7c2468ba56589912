"""What users write, checked when the class is created; no database, no clock.

    class body ──► ClassBody ──► StepDeclaration ──► Step ─┐
    (workflow)     (declare)     (step)                    ├──► Definition ──► registry
    @cancel_if (guard), skip_if, wait_for (signal) ────────┤    (definition)
    on_exception        (policy) ──────────────────────────┘

A run sees the other side: an instance of the class per attempt reads its `AttemptScope`
(scope) and ends with a `StepVerb` (verbs). `StartOptions` (start) hands a start to the bus.
"""
