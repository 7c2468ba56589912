-- Says whether a job's message is a member of a batch that was withdrawn: whoever takes it discards it,
-- one in a transaction, because two that discard several would wait for each other's counters.
CREATE FUNCTION {schema}.is_withdrawn(p_message jsonb)
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.member_of(p_message) m JOIN {schema}.batches b USING (batch_id)
                    WHERE b.withdrawn_at IS NOT NULL)
$$;
