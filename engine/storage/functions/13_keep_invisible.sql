-- Keeps messages that a worker has in hand from being delivered again for p_seconds. A row that another
-- transaction holds is passed over: most likely it is being deleted, and the others must not wait for it.
CREATE FUNCTION {schema}.keep_invisible(p_queue text, p_message_ids bigint[], p_seconds integer)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
BEGIN
    EXECUTE format('SELECT array_agg(msg_id) FROM (SELECT msg_id FROM pgmq.%I WHERE msg_id = ANY ($1)
                                                      FOR UPDATE SKIP LOCKED) held',
                   pgmq.format_table_name(p_queue, 'q'))
       INTO v_ids USING p_message_ids;
    PERFORM pgmq.set_vt(p_queue, v_ids, p_seconds);
END $$;
