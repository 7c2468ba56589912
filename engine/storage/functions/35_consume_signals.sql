-- Consumes the signals that a step of a locked run has claimed: it has ended.
CREATE FUNCTION {schema}.consume_signals(p_workflow_id uuid, p_step_name text)
RETURNS void LANGUAGE sql AS $$
    UPDATE {schema}.workflow_signals
       SET status = 'consumed', consumed_at = clock_timestamp()
     WHERE workflow_id = p_workflow_id AND step_name = p_step_name AND status = 'claimed'
$$;
