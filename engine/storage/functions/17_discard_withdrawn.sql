-- Discards a job's message, as it is delivered, when the batch it is a member of was withdrawn: it does
-- not run. False: it is to run. It may run while others end members of that batch, and waits for those
-- as briefly as they hold a counter; an adder, who may keep the batch for long, is refused by then.
CREATE FUNCTION {schema}.discard_withdrawn(p_queue text, p_message_id bigint, p_message jsonb)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.member_of(p_message) m JOIN {schema}.batches b USING (batch_id)
                WHERE b.withdrawn_at IS NOT NULL) THEN
        PERFORM {schema}.end_job(p_queue, p_message_id, p_message, 'discarded');
        RETURN true;
    END IF;
    RETURN false;
END $$;
