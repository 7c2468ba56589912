"""What users call jobs: functions that workers run, with retries and dead letters.

notify_vendor.options(...).enqueue(7) ──► enqueue ──► one message (envelope)
    (job, registry)                                        │
completed: archived            ◄──┐                        ▼
failed: invisible for a while  ◄──┼── settle ◄── run ◄── execute
spent or poison: dead letters  ◄──┘

control     what an operator does with a queue, a job or a dead letter; bulk, with many
"""
