-- Sends a run's step message, visible at p_at, and returns its id.
-- p_notify wakes workers; a worker that sends to its own queue has its hands on it already.
CREATE FUNCTION {schema}.send_step(p_workflow_id uuid, p_queue text, p_at timestamptz, p_notify boolean)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_message_id bigint;
BEGIN
    SELECT pgmq.send(p_queue, jsonb_build_object('workflow_id', p_workflow_id), NULL::jsonb, p_at)
      INTO v_message_id;
    IF p_notify THEN
        PERFORM pg_notify('{channel}', p_queue);
    END IF;
    RETURN v_message_id;
END $$;
