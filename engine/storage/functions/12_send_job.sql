-- Sends a job's message for the later of p_wait seconds from now and p_not_before, and wakes workers.
CREATE FUNCTION {schema}.send_job(
    p_queue text, p_body jsonb, p_wait double precision, p_not_before timestamptz)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_at timestamptz := greatest(v_now + make_interval(secs => p_wait), p_not_before);
    v_message_id bigint;
BEGIN
    SELECT pgmq.send(p_queue, p_body, NULL::jsonb, v_at) INTO v_message_id;
    PERFORM pg_notify('{channel}', p_queue);
    RETURN v_message_id;
END $$;
