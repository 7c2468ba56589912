"""What happens to one step message, and what a caller may do to a run.

start      a run comes into being, in the caller's transaction
prepare    claim under the run's lock, ask the guards          (locked)
execute    the body, in the host's surroundings                (unlocked)
decide     result x policy x counts -> decision                (pure)
finalize   apply the decision, send what comes next            (locked)
perform    the loop over the four: one message, several steps
control    the outside verbs
run        the handle a caller holds
"""
