-- Inserts the next attempt of a step, scheduled for p_at, and sends its message unless the run sleeps until
-- then; the run's row is locked by the caller, so the attempt's number cannot be taken by another.
CREATE FUNCTION {schema}.schedule_step(
    p_step_id bigint, p_workflow_id uuid, p_step_name text, p_queue text,
    p_at timestamptz, p_now timestamptz, p_notify boolean, p_trace text)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_send_at timestamptz := {schema}.sleeps_until(p_at, p_now);
    v_message_id bigint;
    v_attempt integer;
BEGIN
    IF v_send_at IS NULL THEN
        v_message_id := {schema}.send_step(p_workflow_id, p_queue, p_at, p_notify);
    END IF;
    INSERT INTO {schema}.workflow_steps
        (step_id, workflow_id, step_name, attempt, status, queue, message_id, created_at, scheduled_at, send_at,
         trace)
    VALUES
        (p_step_id, p_workflow_id, p_step_name,
         {schema}.next_attempt(p_workflow_id, p_step_name),
         'scheduled', p_queue, v_message_id, p_now, p_at, v_send_at, p_trace)
    RETURNING attempt INTO v_attempt;
    RETURN v_attempt;
END $$;
