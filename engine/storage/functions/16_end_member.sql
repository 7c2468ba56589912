-- Ends a member of a batch, and returns the batch's id when that finished it. A member ends once: one
-- that has ended, or that never was, changes nothing, whoever else reports it.
-- All its cost is its own row and its counter's; only a counter's last member looks at the batch.
-- Lock order: member, counter, batch. The caller holds the member's message, and never a lock that
-- somebody with one of these may wait for.
CREATE FUNCTION {schema}.end_member(p_batch_id uuid, p_number integer, p_status text)
RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_counter integer;
    v_open integer;
BEGIN
    UPDATE {schema}.batch_jobs j SET status = p_status, ended_at = clock_timestamp()
     WHERE j.batch_id = p_batch_id AND j.number = p_number AND j.status = 'open'
    RETURNING j.counter INTO v_counter;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE {schema}.batch_counters c
       SET open = c.open - 1,
           completed = c.completed + (p_status = 'completed')::integer,
           discarded = c.discarded + (p_status = 'discarded')::integer,
           dead_lettered = c.dead_lettered + (p_status = 'dead_lettered')::integer
     WHERE c.batch_id = p_batch_id AND c.counter = v_counter
    RETURNING c.open INTO v_open;
    RETURN CASE WHEN v_open = 0 AND {schema}.finish_batch(p_batch_id) THEN p_batch_id END;
END $$;
