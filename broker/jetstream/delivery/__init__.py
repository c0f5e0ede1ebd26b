"""The leader's delivery of one consumer: pull queue, push, flow control, redelivery."""
