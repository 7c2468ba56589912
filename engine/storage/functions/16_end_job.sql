-- Archives a job's message, forgets that it failed before, and ends the batch's member that it is;
-- returns the id of a batch that this finished. The message may be gone by now: it has run, and counts.
-- Lock order: message, failed job, member, counter, batch.
CREATE FUNCTION {schema}.end_job(p_queue text, p_message_id bigint, p_message jsonb, p_status text)
RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    m record;
BEGIN
    PERFORM pgmq.archive(p_queue, p_message_id);
    DELETE FROM {schema}.failed_jobs f WHERE f.queue = p_queue AND f.message_id = p_message_id;
    SELECT * INTO m FROM {schema}.member_of(p_message);
    RETURN {schema}.end_member(m.batch_id, m.number, p_status);
END $$;
