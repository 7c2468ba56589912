-- Moves a message to the dead letters; its body stays as it is, and the header dead_letter says from
-- where it came and why. Ends the batch's member that it is, and returns the id of a batch that this
-- finished. Not the message of a later delivery, which is another execution's: no row.
-- Lock order: message, failed job, member, counter, batch.
CREATE FUNCTION {schema}.dead_letter_job(
    p_queue text, p_message_id bigint, p_read_count integer, p_dead_letters text,
    p_error_class text, p_error_message text, p_error jsonb)
RETURNS TABLE (finished_batch uuid) LANGUAGE plpgsql AS $$
DECLARE
    m record;
BEGIN
    EXECUTE format('DELETE FROM pgmq.%I WHERE msg_id = $1 AND read_ct = $2 RETURNING msg_id, message, headers',
                   pgmq.format_table_name(p_queue, 'q'))
       INTO m USING p_message_id, p_read_count;
    IF m.msg_id IS NULL THEN
        RETURN;
    END IF;
    PERFORM pgmq.send(
        p_dead_letters, m.message,
        coalesce(m.headers, '{}') || jsonb_build_object('dead_letter', jsonb_build_object(
            'queue', p_queue, 'message_id', p_message_id, 'read_count', p_read_count,
            'error_class', p_error_class, 'error_message', p_error_message, 'error', p_error,
            'failed_at', clock_timestamp())),
        clock_timestamp());
    DELETE FROM {schema}.failed_jobs f WHERE f.queue = p_queue AND f.message_id = p_message_id;
    RETURN QUERY SELECT {schema}.end_member(member.batch_id, member.number, 'dead_lettered')
                   FROM {schema}.member_of(m.message) member;
END $$;
