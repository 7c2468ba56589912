-- The number of a step's next attempt; numbers go on rising over re-runs of the step.
CREATE FUNCTION {schema}.next_attempt(p_workflow_id uuid, p_step_name text)
RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT coalesce(max(attempt), 0) + 1
      FROM {schema}.workflow_steps
     WHERE workflow_id = p_workflow_id AND step_name = p_step_name
$$;
