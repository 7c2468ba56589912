-- Makes the message of a job that raised visible again in p_wait seconds, and keeps the error. Not the
-- message of a later delivery, which is another execution's: false. Lock order: message, failed job.
CREATE FUNCTION {schema}.retry_job(
    p_queue text, p_message_id bigint, p_read_count integer, p_wait double precision, p_job text,
    p_error_class text, p_error_message text, p_error jsonb)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_message_id bigint;
BEGIN
    EXECUTE format('UPDATE pgmq.%I SET vt = $1 WHERE msg_id = $2 AND read_ct = $3 RETURNING msg_id',
                   pgmq.format_table_name(p_queue, 'q'))
       INTO v_message_id USING v_now + make_interval(secs => p_wait), p_message_id, p_read_count;
    IF v_message_id IS NULL THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.failed_jobs
        (queue, message_id, job, read_count, error_class, error_message, error, failed_at)
    VALUES
        (p_queue, p_message_id, p_job, p_read_count, p_error_class, p_error_message, p_error, v_now)
    ON CONFLICT (queue, message_id) DO UPDATE
       SET job = excluded.job, read_count = excluded.read_count, error_class = excluded.error_class,
           error_message = excluded.error_message, error = excluded.error, failed_at = excluded.failed_at;
    RETURN true;
END $$;
